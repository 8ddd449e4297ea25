"""What a participant asks of its peers: questions, what they offer, requests and proposals."""
