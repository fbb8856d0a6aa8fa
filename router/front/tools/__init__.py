"""Tool calls: what a body may say of tools, the forms in which models write calls, and how calls are read from an answer.

Knows neither HTTP nor llguidance (`router/front/grammar.py` does).
"""
