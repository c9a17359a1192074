"""The steps of one training, booked: from its processes' records to accounts, figures and tables."""
