"""From a validated workflow to a Plan: providers resolved, placeholders checked, nothing asked yet."""
