//! Repair: CHECK of every plugin, which restores what it can.

use std::time::Instant;

use cni::{AddResult, Command, Error, IfName, NetworkList, PluginConfig, RepairReport, Version};
use ipnet::IpNet;

use super::{Answer, ChainResult, Subject, has_verb, to_raw};
use crate::error::{CheckError, PluginFailure};
use crate::runtime::require_usable;
use crate::{Attachment, Runtime};

/// The result of repairing one attachment.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Repairs {
    /// What was restored: the plugin's type, and a line for each thing.
    pub put_back: Vec<(String, String)>,
    /// What each plugin still finds wrong, in the order of the chain.
    pub left: Vec<PluginFailure>,
    /// The list has `disableCheck`, or is of a version without CHECK: nothing was run.
    pub skipped: bool,
}

/// What plugins are asked to do.
#[derive(Debug, Clone, Copy)]
enum RepairRequest<'a> {
    ToLook,
    /// Repair, where ADD made the interface, or where it is since.
    ToRepair(Option<&'a MovedInterface>),
}

/// Where the interface is after a program moved it since ADD, as Docker does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedInterface {
    /// The path of the namespace.
    pub netns: String,
    /// The interface's name in it.
    pub ifname: IfName,
    /// Destinations of routes that ADD made and that another program is to make there.
    pub not_ours: Vec<IpNet>,
}

impl MovedInterface {
    /// Rewrites the result of ADD, as if ADD had made the interface where it is now.
    fn rewrite(&self, previous: &ChainResult, attached_as: &IfName) -> Result<ChainResult, Error> {
        let mut result = previous.result.clone();
        for link in &mut result.interfaces {
            if link.name == attached_as.as_str() && !link.sandbox.is_empty() {
                self.ifname.as_str().clone_into(&mut link.name);
                link.sandbox.clone_from(&self.netns);
            }
        }
        result.routes.retain(|route| !self.not_ours.contains(&route.dst));
        let version = AddResult::version_of(previous.raw.get().as_bytes())?;
        let raw = to_raw(&result, version.unwrap_or(Version::CURRENT))?;
        Ok(ChainResult { raw, result })
    }
}

impl Runtime<'_> {
    /// Restores what ADD made and other programs changed, as far as the plugins can, and reports
    /// the rest.
    ///
    /// Each plugin gets CHECK with the key [`cni::REPAIR`]; one that does not know the key only
    /// checks. Unlike [`Runtime::check_list`] this continues after a failure, because each plugin
    /// of a chain can be repaired by itself. The list must be the one with which the attachment was
    /// made ([`crate::CachedAttachment::list`]).
    ///
    /// # Errors
    /// [`CheckError`] when nothing could be run at all.
    pub fn repair_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<Repairs, CheckError> {
        self.ask_all(list, attachment, RepairRequest::ToRepair(None), deadline)
    }

    /// Does what [`Runtime::repair_list`] does, for an interface that is no longer where ADD made
    /// it: `CNI_NETNS`, `CNI_IFNAME` and `prevResult` tell each plugin where the interface is, and
    /// [`cni::ATTACHED_AS`] which attachment it belongs to.
    ///
    /// # Errors
    /// As [`Runtime::repair_list`].
    pub fn repair_list_at(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        moved: &MovedInterface,
        deadline: Option<Instant>,
    ) -> Result<Repairs, CheckError> {
        self.ask_all(list, attachment, RepairRequest::ToRepair(Some(moved)), deadline)
    }

    /// Asks every plugin of a list what differs from what ADD left, and changes nothing: what
    /// [`Runtime::repair_list`] would find. Our own plugins return each difference separately
    /// ([`cni::LOOK`]).
    ///
    /// # Errors
    /// As [`Runtime::repair_list`].
    pub fn survey_list(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        deadline: Option<Instant>,
    ) -> Result<Repairs, CheckError> {
        self.ask_all(list, attachment, RepairRequest::ToLook, deadline)
    }

    fn ask_all(
        &self,
        list: &NetworkList,
        attachment: &Attachment,
        asked: RepairRequest<'_>,
        deadline: Option<Instant>,
    ) -> Result<Repairs, CheckError> {
        require_usable(list).map_err(CheckError::Invalid)?;
        let key = self.key(list, attachment).map_err(CheckError::Invalid)?;
        let skipped = list.disable_check || !has_verb(&list.cni_version, Command::Check);
        let mut repairs = Repairs { skipped, ..Repairs::default() };
        if repairs.skipped {
            return Ok(repairs);
        }
        let mut previous = self
            .cached_result(&self.cache.look_up(&key), list)
            .map_err(|cause| CheckError::Cache { network: list.name.clone(), cause })?;
        let moved = match asked {
            RepairRequest::ToRepair(moved) => moved,
            RepairRequest::ToLook => None,
        };
        if let (Some(moved), Some(made)) = (moved, &previous) {
            let rewritten = moved.rewrite(made, &attachment.ifname);
            previous = Some(rewritten.map_err(CheckError::Invalid)?);
        }
        let repair = matches!(asked, RepairRequest::ToRepair(_));
        let subject = Subject {
            attachment: Some(attachment),
            previous: previous.as_ref(),
            repair,
            look: !repair,
            moved,
            ..Subject::of(list, Command::Check)
        };
        let mut ask = |plugin: &PluginConfig| match self.call(plugin, subject, deadline) {
            Ok(Answer::Said { stdout, .. } | Answer::SaidUnknown { stdout }) => {
                let lines = RepairReport::parse(&stdout).lines.into_iter();
                let lines = lines.map(|line| (plugin.plugin_type.clone(), line));
                repairs.put_back.extend(lines);
                None
            }
            Ok(Answer::NoSuchVerb) => None,
            Err(error) => Some(Self::failure(plugin, Command::Check, error)),
        };
        let mut left: Vec<_> =
            list.plugins.iter().filter_map(|plugin| Some((plugin, ask(plugin)?))).collect();
        if repair {
            // A later plugin may have restored what an earlier one reported as missing.
            left =
                left.into_iter().filter_map(|(plugin, _)| Some((plugin, ask(plugin)?))).collect();
        }
        repairs.left = left.into_iter().map(|(_, failure)| failure).collect();
        Ok(repairs)
    }
}
