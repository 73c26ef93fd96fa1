//! The runtime against fake plugins: real processes, injected folders.
//!
//! Every row of the feature table's part `runtime lib` is a test here, named after it:
//!
//! | row | test |
//! |---|---|
//! | conflist search order | `load::conflist_search_order` |
//! | malformed earlier file | `load::malformed_earlier_file`: **not** as libcni, which fails |
//! | fallback to .conf/.json | `load::fallback_to_conf_and_json` |
//! | missing dir error | `load::missing_dir_error` |
//! | name not found error | `load::name_not_found_error` |
//! | drop-in plugins | `load::drop_in_plugins` |
//! | loadOnlyInlinedPlugins | `load::load_only_inlined_plugins` |
//! | list validation errors | `load::list_validation_errors` |
//! | string booleans | `load::string_booleans` |
//! | cniVersions max | `load::cni_versions_max` |
//! | lone too-new version | `add::lone_too_new_version` |
//! | name/version injection | `add::name_and_version_injection` |
//! | unknown keys preserved | `add::unknown_keys_preserved` |
//! | big integers preserved | `add::big_integers_preserved` |
//! | runtimeConfig filtering | `add::runtime_config_filtering` |
//! | env completeness | `add::env_completeness` |
//! | plugin search | `add::plugin_search` |
//! | input validation | `add::input_validation` |
//! | ADD chaining | `add::add_chaining` |
//! | ADD error wrapping | `add::add_error_wrapping` |
//! | ADD writes cache | `cache::add_writes_cache` |
//! | cache v1 content | `cache::cache_v1_content` |
//! | legacy cache read | `cache::legacy_cache_read` |
//! | cache dir precedence | `cache::cache_dir_precedence`: the object's folder or the default; libcni's folder per call is deprecated there and has no counterpart here |
//! | cached config | `cache::cached_config` |
//! | CHECK on old version | `check::check_on_old_version` |
//! | disableCheck | `check::disable_check` |
//! | DEL reverse order | `del::del_reverse_order` |
//! | DEL prevResult | `del::del_prev_result` |
//! | DEL tolerates corrupt cache | `del::del_tolerates_corrupt_cache` |
//! | DEL error handling | `del::del_error_handling`: **not** as libcni, which stops at the first error |
//! | GC deletes stale attachments | `gc::gc_deletes_stale_attachments` |
//! | GC verb | `gc::gc_verb` |
//! | GC on old version | `gc::gc_on_old_version` |
//! | GC nil args | `gc::gc_nil_args` |
//! | GC collects errors | `gc::gc_collects_errors` |
//! | disableGC | `gc::disable_gc` |
//! | STATUS | `check::status` |
//! | attachments listing | `cache::attachments_listing` |
//! | Validate | `version::validate` |
//! | GetVersionInfo old plugins | `version::get_version_info_old_plugins` |
//! | result version fix-up | `add::result_version_fix_up` |
//! | failure texts | `add::failure_texts` |
//! | stderr forwarding | `add::stderr_forwarding` |
//! | ETXTBSY retry | `add::etxtbsy_retry`; the end of the timeout is tested in `cni-invoke` |
//! | cancellation | `add::cancellation` |

#![allow(clippy::unwrap_used, reason = "tests")]

mod add;
mod boot;
mod cache;
mod check;
mod del;
mod faults;
mod garbage;
mod gc;
mod kill;
mod lab;
mod load;
mod spec;
mod twice;
mod version;
