"""What running engines report, behind a small port."""
