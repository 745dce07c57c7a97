# shellcheck shell=bash
# Lets a booted bash wait for its program: bash reads this file, named by
# BASH_ENV, before it opens /tmp/main.sh. It says that it is ready and waits at
# the gate, descriptor 3, until the launcher has written the program. Nothing of
# this is left for the program to see.
printf R
IFS= read -r -N 1 -u 3 && [ "$REPLY" = G ] || exit 120
exec 3<&-
unset BASH_ENV REPLY
: bash # the $_ of a shell that has just started
