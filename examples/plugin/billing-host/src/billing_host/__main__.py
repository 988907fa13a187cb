"""`python -m billing_host`, the same as the command `billing-host`."""

from billing_host import main

if __name__ == "__main__":
    raise SystemExit(main())
