#!/bin/sh
# A plugin for tests. It is linked into a folder of plugins under the name of its type and records
# its calls. Then it does what the file TYPE.VERB beside it says, or what a well-behaved plugin
# would do.
type=${0##*/}
dir=${0%/*}
cat > "$dir/$type.$CNI_COMMAND.stdin"
env > "$dir/$type.$CNI_COMMAND.env"
echo "$CNI_COMMAND $type $CNI_CONTAINERID" >> "$dir/log"
version=$(sed -n 's/.*"cniVersion" *: *"\([^"]*\)".*/\1/p' "$dir/$type.$CNI_COMMAND.stdin" | head -n 1)
if [ -e "$dir/$type.$CNI_COMMAND" ]; then
    . "$dir/$type.$CNI_COMMAND"
    exit
fi
case $CNI_COMMAND in
ADD) printf '{"cniVersion":"%s","ips":[{"version":"4","address":"192.0.2.2/24"}],"dns":{"domain":"%s"}}' "$version" "$type" ;;
VERSION) printf '{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}' ;;
esac
