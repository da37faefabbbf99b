"""What trials run: a module for each kind of sweep, by the name of its section in the config."""
