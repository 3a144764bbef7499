"""The papers' tables and figures as commands: what each is, what it costs, what it gave here. See `experiments`."""
