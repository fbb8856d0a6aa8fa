"""The network reserved for transfers, as a router sees it: a planner of its own, or one that it shares with other routers."""
