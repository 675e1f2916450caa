"""What monitoring systems read: metrics of a judged node, alert rules and a dashboard for them."""
