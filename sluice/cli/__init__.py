"""The command line `sluice`: short commands that call the functions of the other packages."""
