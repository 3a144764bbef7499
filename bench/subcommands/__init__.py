"""The subcommands of `eblvm bench`, one a file with a `main(argv)`."""

JSON_HELP = "write the record here; into a folder: after those of its kind"
