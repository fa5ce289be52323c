"""Pictures: each is a data function, whose arrays are kept, and a draw function, which only draws."""

from attnlab.figures.demo import demo_data as demo_data, draw_demo as draw_demo
