"""From a validated workflow to a Plan: providers resolved, placeholders checked, no calls made
yet."""
