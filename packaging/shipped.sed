# sed -E -f: a document as the packages have it, in one folder with the others: what is linked there and in none of them
# becomes plain text (the changelog is there as Debian names it, changelog.gz). Applied by build-debs.sh; tried by a test of xtask.
s#\]\(docs/#](#g
s#\]\(\.\./ARCHITECTURE\.md#](ARCHITECTURE.md#g
s#\[([^][]*)\]\((\.\./|agent-xen/|tests/|packaging/|xtask/)[^)]*\)#\1#g
s#\[([^][]*)\]\((CHANGELOG|CONTRIBUTING)\.md[^)]*\)#\1#g
