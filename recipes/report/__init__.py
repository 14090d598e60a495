"""One HTML page and a terminal summary of a chain's run folder: `rufus report RUN`."""
