//! Devices in quarantine that a person wants tried again, of this node or another.

use std::time::Duration;

use exo_api::{AdminError, NodeView};
use exo_types::{DeviceId, DeviceState, NodeId};

use super::{NodeFacade, unavailable};
use crate::bulk::{Fetcher, MemberError};
use crate::events::DeviceEvent;
use crate::events::Event;
use exo_accelerators::chain;

/// For another node to be reached and to answer, which it does at once.
const ASKED_MAX: Duration = Duration::from_secs(10);

impl NodeFacade {
    /// Has a device checked that is in quarantine. Asked for twice it is checked once.
    pub(super) async fn retry(&self, node: NodeId, device: String) -> Result<(), AdminError> {
        let view = self.view.borrow().clone();
        let id = node.to_full();
        let Some(of) = view.nodes.iter().find(|one| one.id == id) else {
            return Err(AdminError::NotFound { what: "node", name: id });
        };
        // What it had is not known any more.
        if of.status.is_gone() {
            return Err(unavailable(&format!("{} was not asked: it is not there", of.name)));
        }
        let Some(found) = of.devices.iter().find(|one| one.id == device) else {
            return Err(AdminError::NotFound { what: "device", name: device });
        };
        if found.state != DeviceState::Quarantined {
            let message = format!("the device {device} is not in quarantine");
            return Err(AdminError::Conflict { message });
        }
        if of.is_self {
            self.node.post(Event::Device(DeviceEvent::Retry(DeviceId(device))));
            return Ok(());
        }
        self.retry_there(of, DeviceId(device)).await
    }

    async fn retry_there(&self, of: &NodeView, device: DeviceId) -> Result<(), AdminError> {
        let asked = async {
            let mut member = Fetcher::dial_member(&self.endpoint, of).await?;
            Ok(member.retry_device(device).await?)
        };
        let late = |_| Err(MemberError::Late { seconds: ASKED_MAX.as_secs() });
        let asked = tokio::time::timeout(ASKED_MAX, asked).await.unwrap_or_else(late);
        asked.map_err(|error| unavailable(&format!("{} was not asked: {}", of.name, chain(&error))))
    }
}
