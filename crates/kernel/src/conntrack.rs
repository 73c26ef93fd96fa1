//! Connection tracking: forget flows whose translation is gone.
//!
//! A flow that started before a hostport was made, or that goes on after it was removed, keeps its old translation until
//! it is forgotten: UDP flows live as long as packets come.
