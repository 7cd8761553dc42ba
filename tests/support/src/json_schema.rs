//! Checks a JSON document against a schema. In: the part of JSON Schema (2020-12) that docs/json uses, and a document. Out: where
//! they differ. Called by tests: a key of a schema that is not known here is an error, so that none is silently not checked.

use serde_json::{Map, Value};

/// The first difference, by the path of the field.
///
/// # Errors
/// A difference, in words.
pub fn check(schema: &Value, document: &Value) -> Result<(), String> {
    Schema { root: schema }.check(schema, document, "$")
}

struct Schema<'a> {
    root: &'a Value,
}

impl Schema<'_> {
    fn check(&self, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
        let Some(rules) = schema.as_object() else { return Err(format!("{path}: {schema} is no schema")) };
        for (rule, wanted) in rules {
            self.follow(rules, rule, wanted, value, path)?;
        }
        Ok(())
    }

    fn follow(
        &self,
        rules: &Map<String, Value>,
        rule: &str,
        wanted: &Value,
        value: &Value,
        path: &str,
    ) -> Result<(), String> {
        let differs =
            |what: String| Err(format!("{path}: {what}: {}", value.to_string().chars().take(200).collect::<String>()));
        match rule {
            "$schema" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let name = wanted.as_str().and_then(|name| name.strip_prefix("#/$defs/")).unwrap_or_default();
                let Some(schema) = self.root["$defs"].get(name) else {
                    return differs(format!("there is no {wanted}"));
                };
                self.check(schema, value, path)?;
            }
            "type" => {
                let is = |word: &Value| match word.as_str().unwrap_or_default() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "number" => value.is_number(),
                    "integer" => value.is_i64() || value.is_u64(),
                    _ => false,
                };
                if !wanted.as_array().map_or_else(|| is(wanted), |words| words.iter().any(is)) {
                    return differs(format!("is no {wanted}"));
                }
            }
            "enum" if wanted.as_array().is_some_and(|known| known.contains(value)) => {}
            "const" if wanted == value => {}
            "enum" | "const" => return differs(format!("is not {wanted}")),
            "minimum" => {
                if value.as_f64() < wanted.as_f64() {
                    return differs(format!("is below {wanted}"));
                }
            }
            "anyOf" => {
                let all: Vec<String> = wanted
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map_while(|schema| self.check(schema, value, path).err())
                    .collect();
                if Some(all.len()) == wanted.as_array().map(Vec::len) {
                    return differs(format!("is nothing of {}", all.join("; ")));
                }
            }
            "required" => {
                let missing = wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
                let mut missing = missing.filter(|name| value.get(*name).is_none());
                if let Some(name) = missing.next() {
                    return differs(format!("has no {name}"));
                }
            }
            "properties" => {
                for (name, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(field) = value.get(name) {
                        self.check(schema, field, &format!("{path}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                let known = |name: &str| rules.get("properties").is_some_and(|known| known.get(name).is_some());
                for (name, field) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                    match wanted {
                        Value::Bool(false) => return differs(format!("{name} is in no schema")),
                        Value::Bool(true) => {}
                        schema => self.check(schema, field, &format!("{path}.{name}"))?,
                    }
                }
            }
            "prefixItems" => {
                let (schemas, items) = (wanted.as_array(), value.as_array());
                let (Some(schemas), Some(items)) = (schemas, items) else { return differs("is no list".to_owned()) };
                if schemas.len() != items.len() {
                    return differs(format!("has not {} items", schemas.len()));
                }
                for (place, (schema, item)) in schemas.iter().zip(items).enumerate() {
                    self.check(schema, item, &format!("{path}[{place}]"))?;
                }
            }
            // Beside `prefixItems`, which counts them.
            "items" if *wanted == Value::Bool(false) => {}
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.check(wanted, item, &format!("{path}[{place}]"))?;
                }
            }
            unknown => return Err(format!("{path}: the rule {unknown} is not known here")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_rule_by_hand() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "count": {"type": "integer", "minimum": 0},
                "state": {"anyOf": [{"enum": ["on", "off"]}, {"type": "object", "properties": {"held": {"type": "number"}}, "required": ["held"], "additionalProperties": false}]},
                "all": {"type": "array", "items": {"$ref": "#/$defs/pair"}},
                "by": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "maybe": {"type": ["string", "null"]},
            },
            "required": ["name"],
            "additionalProperties": false,
            "$defs": {"pair": {"type": "array", "prefixItems": [{"type": "string"}, {"const": 1}], "items": false}},
        });
        let good = json!({"name": "a", "count": 3, "state": {"held": 1.5}, "all": [["x", 1]], "by": {"h": true}, "maybe": null});
        assert_eq!(check(&schema, &good), Ok(()));
        assert_eq!(check(&schema, &json!({"name": "a", "state": "on"})), Ok(()));
        for (wrong, said) in [
            (json!({}), "has no name"),
            (json!({"name": 1}), "$.name: is no \"string\""),
            (json!({"name": "a", "more": 1}), "more is in no schema"),
            (json!({"name": "a", "count": -1}), "$.count: is below 0"),
            (json!({"name": "a", "count": 1.5}), "$.count: is no \"integer\""),
            (json!({"name": "a", "state": "between"}), "$.state: is nothing of"),
            (json!({"name": "a", "all": [["x", 1], ["x", 2]]}), "$.all[1][1]: is not 1"),
            (json!({"name": "a", "all": [["x"]]}), "has not 2 items"),
            (json!({"name": "a", "by": {"h": 1}}), "$.by.h: is no \"boolean\""),
            (json!({"name": "a", "maybe": 1}), "$.maybe"),
            (json!([]), "has no name"),
        ] {
            let error = check(&schema, &wrong).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(check(&json!({"maxLength": 3}), &json!("a")).unwrap_err().contains("not known"));
    }
}
