"""General helpers: files, locks, devices, progress bars, interrupts and errors. Nothing here is about learning."""
