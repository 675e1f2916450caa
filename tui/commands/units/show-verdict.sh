if [ -r {path} ]; then
    IFS= read -r gdrtop_verdict < {path} && printf '%s\n' "$gdrtop_verdict"
    unset gdrtop_verdict
fi
