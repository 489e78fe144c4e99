//! KvWrite, read back through the neutral page format.

use super::{Case, CaseFacts, pick};
use crate::kv_values::rounding_nmse_max;
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::{Rig, SequencePosition};
use crate::{KvDType, KvShape, Op, OpKind};

struct KvWrite {
    shape: KvShape,
    places: Vec<SequencePosition>,
    table: Vec<Vec<usize>>,
}

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let case = |(dtype, head_dim)| {
        let shape = KvShape { layers: 2, kv_heads: 3, head_dim, page_tokens: 4, pages: 7, dtype };
        let place = |(sequence, position)| SequencePosition { sequence, position };
        let places = [(0, 0), (0, 3), (0, 4), (1, 0), (1, 11), (0, 9)].map(place).to_vec();
        Box::new(KvWrite { shape, places, table: vec![vec![5, 0, 3], vec![1, 6, 2]] }) as Box<dyn Case>
    };
    // 80 and 37: the last group of a row is shorter.
    let types = KvDType::ALL.into_iter();
    types.flat_map(|dtype| [20, 37, 64, 80].map(|head_dim| (dtype, head_dim))).map(case).collect()
}

impl KvWrite {
    fn width(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    fn keys_and_values(&self) -> (Vec<f32>, Vec<f32>) {
        let count = self.places.len() * self.width();
        (Random::new(11).normals(count, 1.0), Random::new(12).normals(count, 1.0))
    }
}

impl Case for KvWrite {
    fn name(&self) -> String {
        let (dtype, d, rows) = (self.shape.dtype, self.shape.head_dim, self.places.len());
        format!("kv write {dtype} heads of {d}, {rows} rows in {} sequences", self.table.len())
    }

    fn facts(&self) -> CaseFacts {
        let nmse_max = rounding_nmse_max(self.shape.dtype);
        CaseFacts { op: OpKind::KvWrite, dtype: None, rows: self.places.len(), nmse_max }
    }

    /// Key and value of each row, found in the exported page of the second layer.
    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let (layer, p, d) = (1, self.shape.page_tokens, self.shape.head_dim);
        let (k, v) = self.keys_and_values();
        let places: Vec<SequencePosition> = rows.iter().map(|r| self.places[*r]).collect();
        let kv = rig.kv(self.shape)?;
        let k = rig.rows(&pick(&k, self.width(), rows), self.width())?;
        let v = rig.rows(&pick(&v, self.width(), rows), self.width())?;
        let batch = rig.batch(&places, &self.table)?;
        rig.run(Op::KvWrite { kv: kv.clone(), layer, k, v, batch }, rows.len())?;
        let mut found = Vec::new();
        for place in places {
            let page = rig.stream.export_kv(&kv, layer, self.table[place.sequence][place.position / p])?;
            for half in page.chunks(page.len() / 2) {
                for head in half.chunks(p * d) {
                    found.extend(&head[place.position % p * d..][..d]);
                }
            }
        }
        Ok(found)
    }

    fn exact(&self) -> Vec<f64> {
        let (k, v) = self.keys_and_values();
        let rows = k.chunks(self.width()).zip(v.chunks(self.width()));
        rows.flat_map(|(k, v)| k.iter().chain(v)).map(|value| f64::from(*value)).collect()
    }
}
