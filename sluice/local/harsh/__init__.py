"""What AWS may do and the embedded cloud doesn't do by itself: `sluice local up --harsh`.

`behaviours` says what and how much, `hardening` has the cloud do it, and each other module is one service's part. What
ministack does otherwise than AWS always does is patched in `sluice.local.patches`, harsh or not.
"""
