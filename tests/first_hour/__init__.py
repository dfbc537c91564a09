"""The first hour of docs/first-hour.md, as somebody has it who has nothing but the wheel and the
page.
"""
