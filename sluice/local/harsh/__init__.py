"""Behaviours of AWS that the embedded cloud imitates only with `sluice local up --harsh`.

`behaviours` are the settings, `hardening` installs them, and each other module has one service's behaviours. Where
ministack differs from what AWS always does, `sluice.local.patches` corrects it, harsh or not.
"""
