"""The OpenAPI document of a running router: what each route takes and answers, with this server's own limits."""
