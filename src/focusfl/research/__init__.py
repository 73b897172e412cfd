"""The paper's tables, studies, theory and coverage. Nothing but the command line imports it."""
