"""The workers as the router sees them: who they are, how busy, how to call them, and the life of a request across a pair."""
