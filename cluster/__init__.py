"""Starts, places and watches workers and the router: the command line, settings and Ray. The only folder that knows Ray."""
