"""The benchmark `focusfl run natural`: every method, and linear models beside them, on five natural federations."""
