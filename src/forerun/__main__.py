"""`python -m forerun`: the command line."""

from forerun.cli.app import main

main()
