"""Files, locks, devices, progress, interrupts, errors: nothing of federated learning."""
