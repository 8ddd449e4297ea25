"""[pure] Token accounting: history, ledger, tracker, report, policies. The store is the one module that does I/O."""
