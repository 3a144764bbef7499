"""The subcommands of `eblvm bench`, one a file with a `main(argv)`."""
