#!/bin/sh
# What xl runs when a guest's network interface or disk comes or goes: joins the one to the bridge, tells the backend the
# numbers of the other. XENBUS_PATH is the backend's place in xenstore. An HVM guest has a second interface for its emulated card.
set -e
case $(basename "$0")-$1 in
  vif-online|vif-add)
    [ "$2" != type_if=tap ] || vif=$INTERFACE
    brctl addif "$(xenstore-read "$XENBUS_PATH/bridge")" "$vif"; ifconfig "$vif" up;;
  block-add)
    xenstore-write "$XENBUS_PATH/physical-device" "$(stat -L -c %t:%T "$(xenstore-read "$XENBUS_PATH/params")")";;
  *) exit 0;;
esac
xenstore-write "$XENBUS_PATH/hotplug-status" connected
