"""Work that is cut into tasks: plans, receipts, the work folder and executors."""
