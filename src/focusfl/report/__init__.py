"""What a person sees of the results."""
