"""The board as text: tables and the words for each figure."""
