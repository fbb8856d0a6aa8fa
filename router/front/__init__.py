"""What a request means, whichever door it came through: bodies, plans, admission, answers. Knows neither HTTP nor gRPC."""
