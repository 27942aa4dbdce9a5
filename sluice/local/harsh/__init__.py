"""Behaviours of AWS that the embedded cloud imitates only with `sluice local up --harsh`.

`behaviours` has the settings, `hardening` installs the behaviours, and each other module has those of one service. What
AWS always does is not here: `sluice.local.patches` corrects the emulator, ministack, with and without `--harsh`.
"""
