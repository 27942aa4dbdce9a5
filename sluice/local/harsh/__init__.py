"""Behaviours of AWS that the embedded cloud imitates only with `sluice local up --harsh`.

Module `behaviours` has the settings, `hardening` installs behaviours, and other modules each imitate one service. What
AWS always does is in `sluice.local.patches`, which corrects the emulator, ministack, with and without `--harsh`.
"""
