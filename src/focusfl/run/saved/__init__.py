"""A trained federation as something to use: predict, assign newcomers, export, save and load."""
