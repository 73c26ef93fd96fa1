//! What restores what plugins have made: `netwright repair`, but for Docker's containers, which only
//! the service `repair` repairs, and for what other projects' plugins made.

use crate::finding::Help;
use crate::model::{Attachment, Container, Scene};

/// The service's name.
const SERVICE: &str = "repair";

/// What enables it.
const ENABLE: [&str; 2] = [
    "printf '[repair]\\nenable = true\\n' | install -D -m 644 /dev/stdin /etc/netwright/netwrightd.d/90-repair.toml",
    "netwright agent reload",
];

/// What helps where other plugins attached a container.
pub const BY_OTHERS: &str =
    "other plugins attached it, and a repair restores only what Netwright's made: attach it again";

/// Returns what restores a container's attachments.
pub(crate) fn of(scene: &Scene, container: &Container) -> Vec<Help> {
    let attachments = &container.attachments;
    if !attachments.is_empty() && attachments.iter().all(|one| one.by_others) {
        return by_others();
    }
    let is_dockers = container.attachments.iter().any(|one| one.dockers);
    by(scene, is_dockers, format!("netwright repair {}", container.id))
}

/// Returns what restores an attachment, and all that differ likewise.
pub(crate) fn all(scene: &Scene, attachment: &Attachment) -> Vec<Help> {
    if attachment.by_others {
        return by_others();
    }
    by(scene, attachment.dockers, "netwright repair".to_owned())
}

/// Returns what helps where other plugins attached a container.
pub(crate) fn by_others() -> Vec<Help> {
    vec![Help::Advice(BY_OTHERS.to_owned())]
}

fn by(scene: &Scene, is_dockers: bool, command: String) -> Vec<Help> {
    if !is_dockers {
        return vec![Help::Command(command)];
    }
    let is_repair = |service: &&crate::model::Service| service.name == SERVICE && service.enabled;
    match scene.services.iter().find(is_repair) {
        Some(service) if service.ready != Some(false) => vec![Help::Advice(
            "wait for a minute: `netwrightd repair` repairs Docker's containers; `netwrightd agent \
             status repair` says what it did last"
                .to_owned(),
        )],
        Some(_) => vec![Help::Advice(
            "`netwrightd repair` repairs Docker's containers, and is not ready: `netwrightd agent \
             status repair` says what it lacks"
                .to_owned(),
        )],
        None => ENABLE.iter().map(|line| Help::Command((*line).to_owned())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Service;

    #[test]
    fn dockers_containers_are_repaired_by_the_service() {
        let attachment = Attachment { dockers: true, ..Attachment::default() };
        let mut container = Container {
            id: "c1".to_owned(),
            attachments: vec![attachment],
            ..Container::default()
        };
        let mut scene = Scene::default();
        let commands: Vec<Help> =
            ENABLE.iter().map(|line| Help::Command((*line).to_owned())).collect();
        assert_eq!(of(&scene, &container), commands);
        let service =
            |ready| Service { name: SERVICE.to_owned(), enabled: true, ready, lacks: None };
        for (ready, words) in [(Some(true), "wait"), (None, "wait"), (Some(false), "not ready")] {
            scene.services = vec![service(ready)];
            let found = all(&scene, &container.attachments[0]);
            assert!(
                matches!(&found[..], [Help::Advice(text)] if text.contains(words)),
                "{found:?}"
            );
        }
        container.attachments[0] = Attachment { by_others: true, ..Attachment::default() };
        assert_eq!(of(&scene, &container), [Help::Advice(BY_OTHERS.to_owned())]);
        container.attachments[0].by_others = false;
        assert_eq!(of(&scene, &container), [Help::Command("netwright repair c1".to_owned())]);
    }
}
