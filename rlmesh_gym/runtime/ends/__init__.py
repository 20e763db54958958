"""What a run plays on and asks: environments and models, wherever they are."""
