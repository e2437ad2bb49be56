//! Sentences for the demo's transcripts: twelve languages, each in its own script, put together from four short lists.
//! Pure; nothing in a list needs escaping in JSON, so every escape in a row is one that was put there on purpose.

use fastrand::Rng;

/// One language of the demo.
#[derive(Debug)]
pub(super) struct Language {
    /// Its code, the folder's name.
    pub(super) code: &'static str,
    /// Its share of the microshards, out of `WEIGHTS`.
    pub(super) weight: u64,
    order: [Part; 4],
    space: &'static str,
    stop: &'static str,
    who: &'static [&'static str],
    does: &'static [&'static str],
    what: &'static [&'static str],
    when: &'static [&'static str],
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Who,
    Does,
    What,
    When,
}

/// Subject, verb, object.
const SVO: [Part; 4] = [Part::Who, Part::Does, Part::What, Part::When];
/// Subject, object, verb.
const SOV: [Part; 4] = [Part::Who, Part::When, Part::What, Part::Does];
/// As in Chinese: the time before the verb.
const TIMED: [Part; 4] = [Part::Who, Part::When, Part::Does, Part::What];

/// The sum of all weights.
pub(super) const WEIGHTS: u64 = 1000;

impl Language {
    /// The language at `point` (below `WEIGHTS`) of the shares laid end to end.
    pub(super) fn at(mut point: u64) -> &'static Language {
        for language in LANGUAGES {
            if point < language.weight {
                return language;
            }
            point -= language.weight;
        }
        &LANGUAGES[0]
    }

    /// Appends one sentence with its full stop.
    pub(super) fn sentence(&self, rng: &mut Rng, text: &mut Vec<u8>) {
        for (index, part) in self.order.into_iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(self.space.as_bytes());
            }
            text.extend_from_slice(self.pick(part, rng).as_bytes());
        }
        text.extend_from_slice(self.stop.as_bytes());
    }

    /// What stands between two sentences.
    pub(super) fn space(&self) -> &'static str {
        self.space
    }

    fn pick(&self, part: Part, rng: &mut Rng) -> &'static str {
        let words = match part {
            Part::Who => self.who,
            Part::Does => self.does,
            Part::What => self.what,
            Part::When => self.when,
        };
        words[rng.usize(..words.len())]
    }
}

/// Uneven on purpose: a language of many shards beside one of few.
#[rustfmt::skip] // a table: one word a line would be 400 lines
pub(super) static LANGUAGES: &[Language] = &[
    Language { code: "en", weight: 300, order: SVO, space: " ", stop: ".",
        who: &["My neighbour", "The second speaker", "Nobody in the room", "Our guest tonight",
            "The old captain", "A friend of mine", "The whole team", "She"],
        does: &["explains", "has forgotten", "writes down", "would rather discuss",
            "keeps asking about", "finally understands", "measured", "translates"],
        what: &["the price of bread", "a very long letter", "the first chapter", "how the engine works",
            "the weather in the north", "an unfinished song", "the other half of the story", "three small mistakes"],
        when: &["this morning", "before the break", "in the next episode", "without any hurry",
            "once again", "at the end of the line", "since last summer", "as usual"],
    },
    Language { code: "es", weight: 140, order: SVO, space: " ", stop: ".",
        who: &["Mi vecina", "El segundo orador", "Nadie en la sala", "Nuestra invitada",
            "El viejo capitán", "Un amigo mío", "Todo el equipo", "Ella"],
        does: &["explica", "ha olvidado", "anota", "prefiere comentar",
            "sigue buscando", "por fin entiende", "midió", "traduce"],
        what: &["el precio del pan", "una carta muy larga", "el primer capítulo", "cómo funciona el motor",
            "el tiempo en el norte", "una canción sin terminar", "la otra mitad de la historia", "tres pequeños errores"],
        when: &["esta mañana", "antes de la pausa", "en el próximo episodio", "sin ninguna prisa",
            "otra vez", "al final de la línea", "desde el verano pasado", "como siempre"],
    },
    Language { code: "pt", weight: 110, order: SVO, space: " ", stop: ".",
        who: &["A minha vizinha", "O segundo orador", "Ninguém na sala", "A nossa convidada",
            "O velho capitão", "Um amigo meu", "Toda a equipa", "Ela"],
        does: &["explica", "esqueceu", "anota", "prefere discutir",
            "continua a procurar", "finalmente compreende", "mediu", "traduz"],
        what: &["o preço do pão", "uma carta muito longa", "o primeiro capítulo", "como funciona o motor",
            "o tempo no norte", "uma canção inacabada", "a outra metade da história", "três pequenos erros"],
        when: &["esta manhã", "antes do intervalo", "no próximo episódio", "sem pressa nenhuma",
            "mais uma vez", "no fim da linha", "desde o verão passado", "como sempre"],
    },
    Language { code: "fr", weight: 90, order: SVO, space: " ", stop: ".",
        who: &["Ma voisine", "Le deuxième orateur", "Personne dans la salle", "Notre invitée",
            "Le vieux capitaine", "Un ami à moi", "Toute l’équipe", "Elle"],
        does: &["explique", "a oublié", "note", "préfère commenter",
            "cherche encore", "comprend enfin", "a mesuré", "traduit"],
        what: &["le prix du pain", "une très longue lettre", "le premier chapitre", "le bruit du moteur",
            "le temps dans le nord", "une chanson inachevée", "l’autre moitié de l’histoire", "trois petites erreurs"],
        when: &["ce matin", "avant la pause", "dans le prochain épisode", "sans se presser",
            "encore une fois", "au bout de la ligne", "depuis l’été dernier", "comme d’habitude"],
    },
    Language { code: "de", weight: 80, order: SVO, space: " ", stop: ".",
        who: &["Meine Nachbarin", "Der zweite Redner", "Niemand im Saal", "Unser Gast",
            "Der alte Kapitän", "Ein Freund von mir", "Die ganze Mannschaft", "Sie"],
        does: &["erklärt", "vergisst", "notiert", "bespricht", "sucht", "versteht", "misst", "übersetzt"],
        what: &["den Preis des Brotes", "einen sehr langen Brief", "das erste Kapitel", "das Geräusch des Motors",
            "das Wetter im Norden", "ein unvollendetes Lied", "die andere Hälfte der Geschichte", "drei kleine Fehler"],
        when: &["heute früh", "vor der Pause", "in der nächsten Folge", "ohne Eile",
            "noch einmal", "am Ende der Straße", "seit dem letzten Sommer", "wie üblich"],
    },
    Language { code: "ru", weight: 70, order: SVO, space: " ", stop: ".",
        who: &["Моя соседка", "Второй докладчик", "Никто в зале", "Наша гостья",
            "Старый капитан", "Один мой друг", "Вся команда", "Она"],
        does: &["объясняет", "забывает", "записывает", "обсуждает",
            "ищет", "наконец понимает", "измеряет", "переводит"],
        what: &["цену хлеба", "очень длинное письмо", "первую главу", "работу двигателя",
            "погоду на севере", "неоконченную песню", "другую половину истории", "три маленькие ошибки"],
        when: &["сегодня утром", "до перерыва", "в следующем выпуске", "без всякой спешки",
            "ещё раз", "в конце улицы", "с прошлого лета", "как обычно"],
    },
    Language { code: "ja", weight: 60, order: SOV, space: "", stop: "。",
        who: &["隣の人は", "二人目の話者は", "部屋の誰もが", "今夜のゲストは", "年老いた船長は", "私の友人は", "チーム全員が", "彼女は"],
        does: &["説明します", "忘れていました", "書き留めます", "話し合います", "探しています", "やっと分かりました", "測りました", "翻訳します"],
        what: &["パンの値段を", "とても長い手紙を", "最初の章を", "エンジンの仕組みを", "北の天気を", "未完成の歌を", "物語の残り半分を", "三つの小さな間違いを"],
        when: &["今朝", "休憩の前に", "次の回で", "急がずに", "もう一度", "道の終わりで", "去年の夏から", "いつものように"],
    },
    Language { code: "zh", weight: 50, order: TIMED, space: "", stop: "。",
        who: &["我的邻居", "第二位发言人", "房间里没有人", "我们的客人", "老船长", "我的一个朋友", "整个团队", "她"],
        does: &["解释了", "忘记了", "写下了", "讨论了", "寻找过", "终于明白了", "测量了", "翻译了"],
        what: &["面包的价格", "一封很长的信", "第一章", "发动机的原理", "北方的天气", "一首没写完的歌", "故事的另一半", "三个小错误"],
        when: &["今天早上", "在休息之前", "在下一集里", "不慌不忙地", "再一次", "在路的尽头", "从去年夏天起", "像往常一样"],
    },
    Language { code: "ko", weight: 40, order: SOV, space: " ", stop: ".",
        who: &["이웃 사람이", "두 번째 발표자가", "방 안의 모두가", "오늘의 손님이", "늙은 선장이", "내 친구가", "팀 전체가", "그녀가"],
        does: &["설명합니다", "잊었습니다", "적어 둡니다", "이야기합니다", "찾고 있습니다", "드디어 이해합니다", "재었습니다", "번역합니다"],
        what: &["빵의 가격을", "아주 긴 편지를", "첫 번째 장을", "엔진의 원리를", "북쪽의 날씨를", "끝나지 않은 노래를", "이야기의 나머지 반을", "작은 실수 세 가지를"],
        when: &["오늘 아침에", "쉬는 시간 전에", "다음 회에서", "서두르지 않고", "다시 한번", "길 끝에서", "지난여름부터", "늘 그렇듯이"],
    },
    Language { code: "hi", weight: 30, order: SOV, space: " ", stop: "।",
        who: &["मेरी पड़ोसन", "दूसरा वक्ता", "कमरे में हर कोई", "हमारा मेहमान",
            "बूढ़ा कप्तान", "मेरा एक दोस्त", "पूरा दल", "वह"],
        does: &["समझाता है", "भूल गया", "लिखता है", "पर चर्चा करता है",
            "ढूँढता रहता है", "आख़िर समझ गया", "नापता है", "का अनुवाद करता है"],
        what: &["रोटी का दाम", "एक बहुत लंबी चिट्ठी", "पहला अध्याय", "इंजन का काम",
            "उत्तर का मौसम", "एक अधूरा गीत", "कहानी का दूसरा हिस्सा", "तीन छोटी गलतियाँ"],
        when: &["आज सुबह", "अवकाश से पहले", "अगली कड़ी में", "बिना जल्दी के",
            "एक बार फिर", "सड़क के अंत में", "पिछली गर्मियों से", "हमेशा की तरह"],
    },
    Language { code: "ar", weight: 20, order: SVO, space: " ", stop: ".",
        who: &["جارتي", "المتحدث الثاني", "كل من في القاعة", "ضيفنا الليلة",
            "القبطان العجوز", "صديق لي", "الفريق كله", "المعلم"],
        does: &["يشرح", "ينسى", "يكتب", "يناقش", "يبحث عن", "يفهم أخيرا", "يقيس", "يترجم"],
        what: &["ثمن الخبز", "رسالة طويلة جدا", "الفصل الأول", "عمل المحرك",
            "طقس الشمال", "أغنية لم تكتمل", "النصف الآخر من القصة", "ثلاثة أخطاء صغيرة"],
        when: &["هذا الصباح", "قبل الاستراحة", "في الحلقة القادمة", "دون عجلة",
            "مرة أخرى", "في آخر الطريق", "منذ الصيف الماضي", "كالعادة"],
    },
    Language { code: "bn", weight: 10, order: SOV, space: " ", stop: "।",
        who: &["আমার প্রতিবেশী", "দ্বিতীয় বক্তা", "ঘরের সবাই", "আমাদের অতিথি",
            "বুড়ো কাপ্তান", "আমার এক বন্ধু", "পুরো দল", "সে"],
        does: &["বুঝিয়ে বলে", "ভুলে গেছে", "লিখে রাখে", "আলোচনা করে",
            "খুঁজে চলে", "শেষে বুঝেছে", "মেপে দেখে", "অনুবাদ করে"],
        what: &["রুটির দাম", "খুব লম্বা একটি চিঠি", "প্রথম অধ্যায়", "ইঞ্জিনের কাজ",
            "উত্তরের আবহাওয়া", "একটি অসমাপ্ত গান", "গল্পের বাকি অর্ধেক", "তিনটি ছোট ভুল"],
        when: &["আজ সকালে", "বিরতির আগে", "পরের পর্বে", "তাড়াহুড়া ছাড়া",
            "আরও একবার", "রাস্তার শেষে", "গত গ্রীষ্ম থেকে", "বরাবরের মতো"],
    },
];
