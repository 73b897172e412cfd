"""Run `flwr ARGUMENTS` as the operator: python -m focusfl.deploy FOLDER ARGUMENTS."""

from focusfl.deploy.operator import main

if __name__ == "__main__":
    main()
