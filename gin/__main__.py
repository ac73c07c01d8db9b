"""`python -m gin` is `gin`."""

from gin.cli.main import main

if __name__ == "__main__":
    main()
