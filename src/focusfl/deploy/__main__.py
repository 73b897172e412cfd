"""python -m focusfl.deploy FOLDER ARGUMENTS: `flwr ARGUMENTS` as the operator whose folder this is."""

from focusfl.deploy.operator import main

if __name__ == "__main__":
    main()
