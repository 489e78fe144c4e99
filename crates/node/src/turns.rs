//! Conversations that are too long, where whoever asks wants the oldest turns left out.

use exo_api::{ChatMessage, GenerateError};

/// Leaves out as many whole turns, the oldest first, as it takes for the conversation to have `room` tokens
/// at most, and says how many messages those are. A turn begins with a message of the user and holds the
/// calls and results that follow; what the system says stays, and so does the last turn, which may take
/// `room_max` where it alone is left. Nothing goes where that is not enough.
pub fn leave_out(
    messages: &mut Vec<ChatMessage>,
    room: usize,
    room_max: usize,
    count_tokens: impl Fn(&[ChatMessage]) -> Result<usize, GenerateError>,
) -> Result<u32, GenerateError> {
    if count_tokens(messages)? <= room {
        return Ok(0);
    }
    let starts: Vec<usize> = (0..messages.len()).filter(|i| messages[*i].role == "user").collect();
    let without = |turns: usize| -> Vec<ChatMessage> {
        let stays = |(i, message): &(usize, &ChatMessage)| {
            *i >= starts[turns] || ["system", "developer"].contains(&message.role.as_str())
        };
        messages.iter().enumerate().filter(stays).map(|(_, message)| message.clone()).collect()
    };
    // Each turn less makes it shorter: the least number is found by halving.
    let (mut too_few, mut enough) = (0, starts.len());
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        match count_tokens(&without(middle))? <= room {
            true => enough = middle,
            false => too_few = middle,
        }
    }
    if enough == starts.len() {
        let Some(last) = enough.checked_sub(1) else { return Ok(0) };
        if count_tokens(&without(last))? > room_max {
            return Ok(0);
        }
        enough = last;
    }
    let kept = without(enough);
    let left_out = (messages.len() - kept.len()) as u32;
    *messages = kept;
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(conversation: &str, room: usize) -> String {
        check_within(conversation, room, room)
    }

    /// One message for each word, `role:tokens`; gives what is left as the same words.
    fn check_within(conversation: &str, room: usize, room_max: usize) -> String {
        let message = |word: &str| {
            let (role, tokens) = word.split_once(':').unwrap();
            ChatMessage { role: role.into(), content: tokens.into(), ..ChatMessage::default() }
        };
        let mut messages: Vec<ChatMessage> = conversation.split(' ').map(message).collect();
        let before = messages.len();
        let count =
            |messages: &[ChatMessage]| Ok(messages.iter().map(|m| m.content.parse::<usize>().unwrap()).sum());
        let left_out = leave_out(&mut messages, room, room_max, count).unwrap();
        assert_eq!(messages.len() + left_out as usize, before);
        let words: Vec<String> = messages.iter().map(|m| format!("{}:{}", m.role, m.content)).collect();
        words.join(" ")
    }

    #[test]
    fn whole_oldest_turns_go_and_no_more_than_it_takes() {
        let talk = "system:5 user:10 assistant:10 tool:10 assistant:1 user:10 assistant:10 user:3";
        assert_eq!(check(talk, 59), talk, "it fits");
        assert_eq!(check(talk, 58), "system:5 user:10 assistant:10 user:3", "calls go with their results");
        assert_eq!(check(talk, 28), "system:5 user:10 assistant:10 user:3");
        assert_eq!(check(talk, 27), "system:5 user:3");
        assert_eq!(check(talk, 7), talk, "what cannot fit is refused whole");
        assert_eq!(check("user:9", 3), "user:9");
        assert_eq!(check("assistant:4 user:3", 3), "user:3", "what stands before the first turn goes first");
        assert_eq!(check("assistant:4 user:3 system:2 user:3", 5), "system:2 user:3");
    }

    #[test]
    fn a_long_last_turn_takes_of_the_answers_room_and_the_system_stays() {
        let talk = "system:2 user:10 assistant:1 system:1 user:9";
        assert_eq!(check_within(talk, 8, 12), "system:2 system:1 user:9");
        assert_eq!(check_within(talk, 8, 11), talk, "what cannot fit is refused whole");
        assert_eq!(check_within(talk, 8, 23), "system:2 system:1 user:9", "the answer gets what it can");
        assert_eq!(check_within("user:9", 8, 9), "user:9");
    }
}
