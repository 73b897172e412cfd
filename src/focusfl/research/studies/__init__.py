"""Studies of the methods themselves; `focusfl study` runs them.

starts      which start of FOCUS finds the true clusters; `starts_report` writes the page about it
bad_agents  what bad agents do to the good ones; `bad_agents_report` writes the page about it
attack      agents that send wrong updates, for any method
runner      runs a study, stores every finished run and resumes an interrupted study
"""
