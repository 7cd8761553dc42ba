# modules.sh (sourced): copy_modules MODULES TARGET NAME...: copies the named kernel modules and all they
# depend on from MODULES to TARGET, with names that sort in the order of insmod. Reads the "depends=" strings
# in the files, so it needs no depmod. A name that is built into the kernel is passed over.
copy_modules() {
  local modules=$1 target=$2; shift 2
  local -A done=()
  local number=100
  _copy() {
    local name=${1//-/_} file dep
    [ -z "${done[$name]:-}" ] || return 0
    done[$name]=1
    file=$(find "$modules" -name "$1.ko" -o -name "$name.ko" -o -name "${name//_/-}.ko" | head -1)
    [ -n "$file" ] || return 0
    for dep in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr ',' ' '); do _copy "$dep"; done
    cp "$file" "$target/$number-$(basename "$file")"
    number=$((number + 1))
  }
  local name; for name; do _copy "$name"; done
}
